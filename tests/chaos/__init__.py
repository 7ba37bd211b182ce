"""Generated cases of damage: files, options, signals and disks, each judged by one oracle."""
