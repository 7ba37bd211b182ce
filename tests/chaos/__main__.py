"""`python -m chaos files --sample 2000`, from the folder of the tests."""

import os
import sys
import traceback

if __name__ == "__main__":
    from chaos.runner import main

    code = 70
    try:
        code = main()
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # packages that are loaded and not used print warnings when Python ends
