package main

import (
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/cli/clustercmd"
	"github.com/berthrun/berth/internal/cli/crictl"
	"github.com/berthrun/berth/internal/cli/ctr"
	"github.com/berthrun/berth/test/docs/markdown"
)

// text is a text to check. Its lines begin at the line of a file; first is 0 for a text that is in no
// file.
type text struct {
	source string
	first  int
	text   string
}

// place names a line of the text for messages.
func (t text) place(line int) string {
	if t.first == 0 {
		return t.source
	}
	return fmt.Sprintf("%s:%d", t.source, t.first+line)
}

// all returns the texts of the repository at root.
func all(root string) ([]text, error) {
	texts, err := prose(root)
	if err != nil {
		return nil, err
	}
	for _, command := range []*cobra.Command{cli.Root(), clustercmd.NewKind(), crictl.New(), ctr.New()} {
		texts = append(texts, help(command)...)
	}
	comments, err := examples(root)
	return append(texts, comments...), err
}

// prose returns the text of each page outside of its code blocks.
func prose(root string) ([]text, error) {
	pages, err := markdown.Pages(root)
	if err != nil {
		return nil, err
	}
	const man = "build/packages/berth-supervisor.8.md"
	data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(man)))
	if err != nil {
		return nil, err
	}
	page, err := markdown.Parse(man, string(data))
	if err != nil {
		return nil, err
	}
	var texts []text
	for _, page := range append(pages, page) {
		texts = append(texts, paragraphs(page)...)
	}
	return texts, nil
}

// paragraphs returns the paragraphs of a page: a code span may begin on a line of one and end on the
// next.
func paragraphs(page markdown.Page) []text {
	var texts []text
	last := 0
	for _, line := range page.Prose {
		if line.Number != last+1 || strings.TrimSpace(line.Text) == "" || len(texts) == 0 {
			texts = append(texts, text{page.Name, line.Number, line.Text})
		} else {
			texts[len(texts)-1].text += "\n" + line.Text
		}
		last = line.Number
	}
	return texts
}

// help returns the help texts of a command and of all below it, hidden ones too.
func help(cmd *cobra.Command) []text {
	source := "help of " + cmd.CommandPath()
	texts := []text{{source, 0, cmd.Short}, {source, 0, indented.ReplaceAllString(cmd.Long, "")}}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" { // cobra's own words, and the command's name
			texts = append(texts, text{source + " --" + f.Name, 0, f.Usage})
		}
	})
	for _, sub := range cmd.Commands() {
		texts = append(texts, help(sub)...)
	}
	return texts
}

var (
	// indented are lines of a help text that show commands or files.
	indented = regexp.MustCompile(`(?m)^ {2,}.*$`)
	// comment is a comment of YAML. An indented one shows commands.
	comment = regexp.MustCompile(`(?:^|\s)#(?: (\S.*))?$`)
)

// examples returns the comments of the files in examples, and the texts that a dashboard and alerts
// show.
func examples(root string) ([]text, error) {
	var texts []text
	err := filepath.WalkDir(filepath.Join(root, "examples"), func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		found, err := example(filepath.ToSlash(name), string(data))
		texts = append(texts, found...)
		return err
	})
	return texts, err
}

// example returns the texts of one file of examples.
func example(name, data string) ([]text, error) {
	var texts []text
	switch filepath.Ext(name) {
	case ".go":
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, name, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, group := range parsed.Comments {
			texts = append(texts, text{name, files.Position(group.Pos()).Line, strings.TrimRight(group.Text(), "\n")})
		}
	case ".yaml":
		for i, line := range strings.Split(data, "\n") {
			if found := comment.FindStringSubmatch(line); found != nil {
				texts = append(texts, text{name, i + 1, found[1]})
			}
			if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && slices.Contains([]string{"summary", "description"}, key) {
				texts = append(texts, text{name, i + 1, value})
			}
		}
	case ".json":
		var value any
		if err := json.Unmarshal([]byte(data), &value); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		texts = shown(name, value)
	case ".md":
		// A page, which prose has.
	default:
		return nil, fmt.Errorf("%s: test/docs/spelling does not know where files %s have their texts", name, filepath.Ext(name))
	}
	return texts, nil
}

// shown returns the titles and the descriptions in a value of JSON.
func shown(name string, value any) []text {
	var texts []text
	switch value := value.(type) {
	case []any:
		for _, entry := range value {
			texts = append(texts, shown(name, entry)...)
		}
	case map[string]any:
		for key, entry := range value {
			if s, ok := entry.(string); ok && (key == "title" || key == "description") {
				texts = append(texts, text{source: name, text: s})
			}
			texts = append(texts, shown(name, entry)...)
		}
	}
	return texts
}
