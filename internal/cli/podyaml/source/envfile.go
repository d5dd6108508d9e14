package source

import (
	"fmt"
	"strings"
)

// readEnvFile finds a variable in an env file, whose lines are a part of what shells
// read: NAME='value', where nothing in the quotes has a meaning and the value may have
// lines; comments and empty lines; white space before a name. NAME= is an empty value.
func readEnvFile(data, name string) (value string, there bool, err error) {
	rest := data
	for n := 1; rest != ""; n++ {
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		line = strings.TrimLeft(strings.TrimSuffix(line, "\r"), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		key, after, ok := strings.Cut(line, "=")
		switch {
		case !ok:
			return "", false, fmt.Errorf("line %d of the env file has no =", n)
		case key == "" || strings.ContainsAny(key, " \t"):
			return "", false, fmt.Errorf("line %d of the env file: %q is not the name of a variable", n, key)
		}
		text, tail := "", after
		if quoted, ok := strings.CutPrefix(after, "'"); ok {
			closed := false
			if text, tail, closed = strings.Cut(quoted, "'"); !closed {
				more, after, closed := strings.Cut(rest, "'")
				if !closed {
					return "", false, fmt.Errorf("line %d of the env file: the quote is not closed", n)
				}
				n += 1 + strings.Count(more, "\n")
				text += "\n" + more
				tail, rest, _ = strings.Cut(after, "\n")
			}
		} else if after != "" && after[0] != ' ' && after[0] != '\t' {
			return "", false, fmt.Errorf("line %d of the env file: a value must be in single quotes", n)
		} else if strings.TrimLeft(after, " \t") != "" {
			tail = "" // white space ends the assignment: the value is empty
		}
		if tail = strings.TrimSpace(tail); tail != "" && tail[0] != '#' {
			return "", false, fmt.Errorf("line %d of the env file: %q follows the value", n, tail)
		}
		if key == name {
			return text, true, nil
		}
	}
	return "", false, nil
}
