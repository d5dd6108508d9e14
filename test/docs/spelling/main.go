// Command spelling checks the words of the docs, of the help texts of the programs and of the
// comments of examples. hunspell knows British English; words.txt has the words of our field. Code
// spans, code blocks, paths and names of programs' objects are not checked.
//
// Without hunspell it says so and checks nothing. It fails in this case if BERTH_REQUIRE declares the
// ability "spelling", as CI does.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/berthrun/berth/internal/require"
)

//go:embed words.txt
var wordsText string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, ".", os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "spelling: %v\n", err)
		os.Exit(1) //nolint:gocritic // stop has nothing left to do
	}
}

// run prints the misspelled words of the repository at root, as PLACE: WORD, and returns an error if
// it finds one.
func run(ctx context.Context, root string, out io.Writer) error {
	texts, err := all(root)
	if err != nil {
		return err
	}
	own, err := readWords(wordsText)
	if err != nil {
		return err
	}
	misspelled, err := speller(ctx, unknown(texts, own))
	if missing := new(missingError); errors.As(err, &missing) {
		if require.Declared(require.AbilitySpelling) {
			return fmt.Errorf("ability %q is declared by BERTH_REQUIRE but missing: %w", require.AbilitySpelling, err)
		}
		_, err = fmt.Fprintf(out, "spelling: skipped: needs ability %q: %v\n", require.AbilitySpelling, err)
		return err
	}
	if err != nil {
		return err
	}
	faults := 0
	for _, text := range texts {
		for _, word := range words(text.text) {
			for _, part := range own.unknown(word.text) {
				suggestions, wrong := misspelled[part]
				if !wrong {
					continue
				}
				faults++
				hint := ""
				if len(suggestions) > 0 {
					hint = " (" + strings.Join(suggestions, ", ") + "?)"
				}
				fmt.Fprintf(out, "%s: %s%s\n", text.place(word.line), part, hint)
			}
		}
	}
	if faults > 0 {
		return fmt.Errorf("%d words are misspelled; put a name into backticks, and a word of our field into test/docs/spelling/words.txt", faults)
	}
	return nil
}

// unknown returns the words of texts that are not in own, each once.
func unknown(texts []text, own ownWords) []string {
	seen := map[string]bool{}
	var all []string
	for _, text := range texts {
		for _, word := range words(text.text) {
			for _, part := range own.unknown(word.text) {
				if !seen[part] {
					all = append(all, part)
				}
				seen[part] = true
			}
		}
	}
	return all
}
