package commandtree

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// TestDescribe: the tree has every command and flag that users see, each flag at the command that
// it belongs to, and nothing that is hidden.
func TestDescribe(t *testing.T) {
	run := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "boat", Short: "A boat"}
	root.PersistentFlags().String("endpoint", "here", "where it is")
	sail := &cobra.Command{Use: "sail [PORT]", Short: "Sail", Long: "Sail to a port.", Example: "boat sail Kiel", Run: run}
	sail.Flags().BoolP("fast", "f", false, "fast")
	sail.Flags().String("secret", "", "not shown")
	if err := sail.Flags().MarkHidden("secret"); err != nil {
		t.Fatal(err)
	}
	root.AddCommand(sail, &cobra.Command{Use: "plumbing", Run: run, Hidden: true})
	help := func(name string) Flag {
		return Flag{Name: "help", Shorthand: "h", Usage: "help for " + name, Type: "bool", Default: "false", Bare: "true"}
	}
	want := Command{
		Use: "boat", Short: "A boat", Flags: []Flag{help("boat")},
		Inherited: []Flag{{Name: "endpoint", Usage: "where it is", Type: "string", Default: "here"}},
		Commands: []Command{{
			Use: "sail [PORT]", Short: "Sail", Long: "Sail to a port.", Example: "boat sail Kiel", Runnable: true,
			Flags: []Flag{{Name: "fast", Shorthand: "f", Usage: "fast", Type: "bool", Default: "false", Bare: "true"}, help("sail")},
		}},
	}
	if diff := cmp.Diff(want, Describe(root)); diff != "" {
		t.Errorf("the tree differs (-want +got):\n%s", diff)
	}
}

// TestReference: the page has a row and a section for each command, with usage, examples and flags.
func TestReference(t *testing.T) {
	sail := Command{
		Use: "sail [PORT]", Short: "Sail | drift", Long: "Sail to <PORT>:\n\n  boat sail\n\n  boat sail Kiel\n\nor far.", Example: "  boat sail Kiel\n  boat sail Oslo", Runnable: true,
		Flags: []Flag{{Name: "fast", Shorthand: "f", Usage: "fast", Type: "bool", Default: "false"}, {Name: "crew", Usage: "one | more", Type: "int", Default: "2"}, {Name: "help", Type: "bool"}},
	}
	root := Command{Use: "boat", Commands: []Command{{
		Use: "go", Short: "Go", Runnable: true, Flags: []Flag{{Name: "help"}},
		Inherited: []Flag{{Name: "endpoint", Usage: "where", Type: "string"}}, Commands: []Command{sail},
	}}}
	want := `| command | what it does |
|---|---|
| [$boat go$](#boat-go) | Go |
| [$boat go sail$](#boat-go-sail) | Sail \| drift |

## $boat go$

Go.

Flags of all commands below:

| flag | default | meaning |
|---|---|---|
| $--endpoint string$ |  | where |

### $boat go sail$

Sail to &lt;PORT>:

$$$text
boat sail

boat sail Kiel
$$$

or far.

$$$text
boat go sail [PORT] [flags]
$$$

Examples:

$$$sh
boat sail Kiel
boat sail Oslo
$$$

| flag | default | meaning |
|---|---|---|
| $-f, --fast$ |  | fast |
| $--crew int$ | $2$ | one \| more |
`
	page := Reference(root)
	_, got, _ := strings.Cut(page, "same.\n\n")
	if diff := cmp.Diff(strings.ReplaceAll(want, "$", "`"), got); diff != "" {
		t.Errorf("the page differs (-want +got):\n%s", diff)
	}
}
