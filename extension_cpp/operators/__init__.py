"""One folder per operator: kernels, registration, module and spec."""
