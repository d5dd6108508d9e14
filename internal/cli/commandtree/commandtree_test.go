package commandtree

import (
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
