COMMANDS = demo test lint types docs bench shell

.PHONY: $(COMMANDS)

$(COMMANDS):
	@python3 dev.py $@ $(ARGS)
