package render

import "strings"

// Script is one POSIX shell script. It can run again: it changes what differs and restarts what has
// changed.
func Script(in Input) (Output, error) {
	p, err := take(in)
	if err != nil {
		return Output{}, err
	}
	sh := shell{parts: p, local: true}
	var s strings.Builder
	// All of it is in a function, so that a script that was cut short does nothing.
	s.WriteString("#!/bin/sh\n" + p.head() + "set -eu\n\n" + lib + "\nnode() {\n" + p.machineWords() + "\n")
	for _, task := range p.tasks {
		if step := sh.step(task); step != "" {
			s.WriteString(step + "\n")
		}
	}
	s.WriteString("finish\n}\nnode\n")
	return p.output(Output{Text: []byte(s.String())})
}
