"""Where Horovod's users import its errors from: `from paceline.common.exceptions import HorovodInternalError`."""
