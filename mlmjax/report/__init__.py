"""What people look at: progress, tables, and later plots and pages."""
