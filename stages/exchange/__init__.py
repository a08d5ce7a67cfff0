"""Packed rows as other trainers' files hold them: arrays in, arrays and bytes out."""
