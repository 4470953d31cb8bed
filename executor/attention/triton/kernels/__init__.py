"""The kernels themselves. How they are launched lies in the modules beside this folder."""
