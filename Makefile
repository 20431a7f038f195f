COMMANDS = demo test lint types docs build package bench chaos compat picture shell

.DEFAULT_GOAL = help
.PHONY: help $(COMMANDS)

help:
	@python3 dev.py

$(COMMANDS):
	@python3 dev.py $@ $(ARGS)
