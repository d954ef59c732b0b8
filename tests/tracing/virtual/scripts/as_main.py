"""Says how it was started."""

import json
import sys
from pathlib import Path

from beside_as_main import NAME

state = {
    "name": __name__,
    "file": __file__,
    "argv": sys.argv,
    "first on the path": sys.path[0],
    "folder": str(Path.cwd()),
    "beside": NAME,
    "main": sys.modules["__main__"].__file__,
}
Path(sys.argv[1]).write_text(json.dumps(state))
