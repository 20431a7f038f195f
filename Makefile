COMMANDS = demo test lint types docs bench chaos shell

.PHONY: $(COMMANDS)

$(COMMANDS):
	@python3 dev.py $@ $(ARGS)
