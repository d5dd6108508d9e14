package commandtree

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// newReference prints docs/commands.md.
func newReference() *cobra.Command {
	return &cobra.Command{
		Use:    "reference",
		Short:  "Print the reference page",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := fmt.Fprint(cmd.OutOrStdout(), Reference(Describe(cmd.Root()))); err != nil {
				return fmt.Errorf("cannot print the page: %w", err)
			}
			return nil
		},
	}
}

// Reference renders the page of a tree of commands: a table of all, and a section for each.
func Reference(root Command) string {
	var table, sections strings.Builder
	for _, c := range root.Commands {
		reference(&table, &sections, root.name(), 2, c)
	}
	name := root.name()
	return "# Commands of " + name + "\n\n" +
		"<!-- Made by `make generate` from the commands' help. Do not edit. -->\n\n" +
		"With this page you can look up each command of " + name + " with its flags. `" + name + " COMMAND --help` prints the\n" +
		"same.\n\n" +
		"| command | what it does |\n|---|---|\n" + table.String() + sections.String()
}

// reference adds a command and all below it to the table and to the sections. level is that of its
// heading.
func reference(table, sections *strings.Builder, parent string, level int, c Command) {
	path := parent + " " + c.name()
	fmt.Fprintf(table, "| [`%s`](#%s) | %s |\n", path, strings.ReplaceAll(path, " ", "-"), cell(c.Short))
	fmt.Fprintf(sections, "\n%s `%s`\n\n%s\n", strings.Repeat("#", level), path, described(c))
	// A command that has only others below it prints its help.
	if c.Runnable && (len(c.Commands) == 0 || len(c.Flags) > 1 || c.Use != c.name()) {
		usage := parent + " " + c.Use
		if len(c.Flags) > 1 && !strings.Contains(usage, "[flags]") { // --help alone is none
			usage += " [flags]"
		}
		fmt.Fprintf(sections, "\n```text\n%s\n```\n", usage)
	}
	if c.Example != "" {
		fmt.Fprintf(sections, "\nExamples:\n\n```sh\n%s\n```\n", outdented(c.Example))
	}
	flagTable(sections, "", c.Flags)
	flagTable(sections, "Flags of all commands below:\n\n", c.Inherited)
	for _, sub := range c.Commands {
		reference(table, sections, path, min(level+1, 4), sub)
	}
}

// name is the command's own name, without its arguments.
func (c Command) name() string {
	name, _, _ := strings.Cut(c.Use, " ")
	return name
}

// described is the long description, else the short one. Its indented lines are commands or files.
func described(c Command) string {
	if c.Long == "" {
		return c.Short + "."
	}
	var b strings.Builder
	fenced := false
	lines := strings.Split(strings.Trim(c.Long, "\n"), "\n")
	for i, line := range lines {
		// An empty line within an indented part belongs to it.
		indented := isIndented(line) || line == "" && fenced && i+1 < len(lines) && isIndented(lines[i+1])
		switch {
		case indented && !fenced:
			if i > 0 && lines[i-1] != "" {
				b.WriteString("\n")
			}
			b.WriteString("```text\n")
		case !indented && fenced:
			b.WriteString("```\n")
		}
		fenced = indented
		if !indented {
			line = escaped(line)
		}
		b.WriteString(strings.TrimPrefix(strings.TrimPrefix(line, "\t"), "  ") + "\n")
	}
	if fenced {
		b.WriteString("```\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

func isIndented(line string) bool {
	return strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t")
}

// flagTable adds the table of flags. --help is in none: each command has it.
func flagTable(b *strings.Builder, title string, flags []Flag) {
	head := "\n" + title + "| flag | default | meaning |\n|---|---|---|\n"
	for _, f := range flags {
		if f.Name == "help" {
			continue
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if f.Type != "bool" {
			name += " " + f.Type
		}
		initial := ""
		if f.Default != "" && f.Default != "[]" && f.Default != "false" {
			initial = "`" + f.Default + "`"
		}
		fmt.Fprintf(b, "%s| `%s` | %s | %s |\n", head, name, initial, cell(f.Usage))
		head = ""
	}
}

// cell is a text as a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(escaped(text), "|", `\|`), "\n", " ")
}

// escaped is a text in which < begins no HTML.
func escaped(text string) string { return strings.ReplaceAll(text, "<", "&lt;") }

// outdented is a text without the indentation of its first line.
func outdented(text string) string {
	text = strings.Trim(text, "\n")
	indentation := text[:len(text)-len(strings.TrimLeft(text, " "))]
	return strings.ReplaceAll(strings.TrimPrefix(text, indentation), "\n"+indentation, "\n")
}
