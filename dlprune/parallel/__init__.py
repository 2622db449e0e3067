"""Work on many images by threads or processes of this machine, or by the machines of a dask cluster."""
