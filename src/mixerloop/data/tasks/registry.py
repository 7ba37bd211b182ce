"""The synthetic tasks by name. A new task is one file and one line at the end of this file."""

from mixerloop.data.tasks.arithmetic import Arithmetic
from mixerloop.data.tasks.brackets import Brackets
from mixerloop.data.tasks.edits import Edits
from mixerloop.data.tasks.hops import Hops
from mixerloop.data.tasks.permutations import Permutations
from mixerloop.data.tasks.recall import Recall
from mixerloop.data.tasks.task import Task, TaskSettings

TASKS: dict[str, type[Task]] = {}


def register(task: type[Task]) -> None:
    """Make a task known to preparation, training and measurement under its name."""
    if task.name in TASKS:
        raise ValueError(f"two tasks are called {task.name}")
    TASKS[task.name] = task


def task_of(settings: TaskSettings) -> type[Task]:
    """The task whose settings have this type."""
    for task in TASKS.values():
        if task.settings_type is type(settings):
            return task
    raise ValueError(f"{type(settings).__name__}: not the settings of a task in {list(TASKS)}")


register(Hops)
register(Permutations)
register(Recall)
register(Brackets)
register(Arithmetic)
register(Edits)
