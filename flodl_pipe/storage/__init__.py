"""Bytes by position: an ordered list of blobs (files, later remote objects) behind one interface."""
