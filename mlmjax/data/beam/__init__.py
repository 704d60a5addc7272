"""The same preparation on Apache Beam, for what outgrows a machine."""
