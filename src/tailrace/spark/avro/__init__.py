"""Avro in keys and values: schemas as Spark columns, and bodies as Arrow, decoded in the worker by fastavro."""
