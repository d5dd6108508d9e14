// Package commandtree describes a program's commands as data. The man pages of packages are made
// from it, outside of the program.
package commandtree

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Command is one command with all below it. Hidden commands and flags are left out.
type Command struct {
	// Use is the line of usage: the name, then the arguments.
	Use     string `json:"use"`
	Short   string `json:"short,omitempty"`
	Long    string `json:"long,omitempty"`
	Example string `json:"example,omitempty"`
	// Runnable is false for a command that only has others below it.
	Runnable bool `json:"runnable"`
	// Flags are the command's own.
	Flags []Flag `json:"flags,omitempty"`
	// Inherited are flags that all commands below it have, too.
	Inherited []Flag    `json:"inherited,omitempty"`
	Commands  []Command `json:"commands,omitempty"`
}

// Flag is one flag of a command.
type Flag struct {
	Name      string `json:"name"`
	Shorthand string `json:"shorthand,omitempty"`
	Usage     string `json:"usage,omitempty"`
	// Type is the word of pflag for the type of the value, such as string or bool.
	Type string `json:"type"`
	// Default is the value of a flag that is not given.
	Default string `json:"default,omitempty"`
	// Bare is the value of a flag that is given without one.
	Bare string `json:"bare,omitempty"`
}

// New returns the command that prints the tree in which it is, as JSON.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "commands",
		Short:  "Print all commands with their flags as JSON, for man pages",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			encoder := json.NewEncoder(cmd.OutOrStdout())
			encoder.SetEscapeHTML(false)
			encoder.SetIndent("", " ")
			if err := encoder.Encode(Describe(cmd.Root())); err != nil {
				return fmt.Errorf("cannot print the commands: %w", err)
			}
			return nil
		},
	}
	cmd.AddCommand(newReference())
	return cmd
}

// Describe reads a command and all below it.
func Describe(cmd *cobra.Command) Command {
	cmd.InitDefaultHelpFlag()
	inherited := cmd.PersistentFlags()
	c := Command{
		Use: cmd.Use, Short: cmd.Short, Long: cmd.Long, Example: cmd.Example, Runnable: cmd.Runnable(),
		Flags:     flags(cmd.LocalFlags(), func(f *pflag.Flag) bool { return inherited.Lookup(f.Name) == nil }),
		Inherited: flags(inherited, func(*pflag.Flag) bool { return true }),
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			c.Commands = append(c.Commands, Describe(sub))
		}
	}
	return c
}

// flags lists the flags of a set that are shown and wanted.
func flags(set *pflag.FlagSet, wanted func(*pflag.Flag) bool) []Flag {
	var list []Flag
	set.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Deprecated == "" && wanted(f) {
			list = append(list, Flag{Name: f.Name, Shorthand: f.Shorthand, Usage: f.Usage, Type: f.Value.Type(), Default: f.DefValue, Bare: f.NoOptDefVal})
		}
	})
	return list
}
