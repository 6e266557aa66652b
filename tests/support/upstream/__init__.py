# SPDX-License-Identifier: Apache-2.0
"""What upstream's own tests need on a machine without a GPU, as pytest plugins.

`-p upstream.seams` opens the seams of the test harness that assume a CUDA
device; `-p upstream.outcomes` writes down how each test ended. The platform
itself (streams, events, the model runner) is cpurig's. No logic of vLLM's is
replaced by either.
"""
