COMMANDS = demo test coverage lint mutants types docs figures fuzz build package rehearse renew alerts bench chaos compat picture scale screenshots shell soak upgrade

.DEFAULT_GOAL = help
.PHONY: help $(COMMANDS)

help:
	@python3 dev.py

$(COMMANDS):
	@python3 dev.py $@ $(ARGS)
