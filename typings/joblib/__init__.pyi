from typing import Any

def cpu_count(only_physical_cores: bool = ...) -> int: ...

delayed: Any
Parallel: Any
