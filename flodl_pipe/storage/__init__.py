"""Bytes by position: an ordered list of blobs (files, remote objects) behind one interface."""
