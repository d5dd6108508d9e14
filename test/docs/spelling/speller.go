package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// missingError is a machine without hunspell, or without its dictionary.
type missingError struct{ err error }

func (e *missingError) Error() string {
	return fmt.Sprintf("hunspell cannot check British English: %v; install hunspell and hunspell-en-gb (apt-get), or run make verify as root, which does", e.err)
}

func (e *missingError) Unwrap() error { return e.err }

// speller returns the misspelled words of a list with at most three suggestions for each.
func speller(ctx context.Context, list []string) (map[string][]string, error) {
	path, err := exec.LookPath("hunspell")
	if err != nil {
		return nil, &missingError{err}
	}
	if err := exec.CommandContext(ctx, path, "-d", "en_GB", "-l", "/dev/null").Run(); err != nil { //nolint:gosec // hunspell of PATH
		return nil, &missingError{fmt.Errorf("dictionary en_GB: %w", err)}
	}
	// -a is the protocol of ispell: a line of answers for each word, and an empty line. ^ says that
	// what follows is no command.
	cmd := exec.CommandContext(ctx, path, "-d", "en_GB", "-i", "utf-8", "-a") //nolint:gosec // hunspell of PATH
	cmd.Stdin = strings.NewReader("^" + strings.Join(list, "\n^") + "\n")
	answers, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot run %s: %w", path, err)
	}
	return readAnswers(list, string(answers))
}

// readAnswers reads what hunspell says of the words of a list: a line with its version, then of each
// word a line with the result, and an empty one.
func readAnswers(list []string, answers string) (map[string][]string, error) {
	_, rest, _ := strings.Cut(answers, "\n")
	results := strings.Split(strings.TrimSuffix(rest, "\n\n"), "\n\n")
	if len(results) != len(list) {
		return nil, errors.New("hunspell gave " + fmt.Sprint(len(results)) + " answers about " + fmt.Sprint(len(list)) + " words")
	}
	misspelled := map[string][]string{}
	for i, result := range results {
		switch {
		case strings.HasPrefix(result, "#"):
			misspelled[list[i]] = nil
		case strings.HasPrefix(result, "&"):
			_, found, _ := strings.Cut(result, ": ")
			suggestions := strings.Split(found, ", ")
			misspelled[list[i]] = suggestions[:min(3, len(suggestions))]
		}
	}
	return misspelled, nil
}
