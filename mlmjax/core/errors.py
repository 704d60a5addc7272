"""The one exception for bad input."""


class UserError(Exception):
    """Something that the user gave cannot be used.

    The message names the file, line or option and says what to do. The command line prints it without
    a traceback and exits with status 2.
    """
