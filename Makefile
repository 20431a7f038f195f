COMMANDS = demo test lint types docs bench chaos picture shell

.PHONY: $(COMMANDS)

$(COMMANDS):
	@python3 dev.py $@ $(ARGS)
