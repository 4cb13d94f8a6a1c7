"""Record batches, format v2: the bytes that producers send, logs keep and consumers read.

`batch` is the header and the broker's hot lane; `record` the records inside; `compression` the codecs; `control` what
brokers write between the records; `kernels` the loops over many records, compiled where possible.
"""
