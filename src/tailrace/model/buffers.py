"""Memory that is used again, but never while a view of the memory exists.

Touching a page for the first time costs more than copying the page: on a virtual machine 0.3 ms per MB, as much as
reading that MB from the page cache and sending the MB. So buffers of more than a few pages are kept and used again.
"""


def new_buffer(size_bytes: int) -> bytearray:
    """A buffer of this size, all zeros, for which `has_no_views` can be asked."""
    # One byte more, taken away again, leaves space in the allocation: has_no_views() then never moves the bytes.
    buffer = bytearray(size_bytes + 1)
    buffer.pop()
    return buffer


def has_no_views(buffer: bytearray) -> bool:
    """Whether nothing refers to the bytes: Python refuses to resize a bytearray that exports its memory."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
