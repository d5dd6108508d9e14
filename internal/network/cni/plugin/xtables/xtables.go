// Package xtables reads and changes a table of iptables at once. go-iptables runs a program for each rule that it looks
// for and each that it adds, and starting programs is nearly all of the time that a pod's rules take.
//
// There are two ways. If the host's iptables is the variant nf_tables, in a version that this package knows, the table is
// one of nftables: the package reads and writes it by netlink (kernel.go) and runs no program. The rules are those that
// the program would write, so other programs that use iptables see no difference. Otherwise iptables and
// iptables-restore run once each (program.go).
//
// What the package cannot do in one go, such as a rule whose listing differs from how it was written, its callers leave
// to go-iptables.
package xtables

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Table is a table of one family, as it was when it was read.
type Table struct{ source }

// source is a way to a table.
type source interface {
	hasChain(chain string) bool
	hasRule(chain string, words []string) bool
	// jumps returns the commands that remove the rules of a chain that lead to another.
	jumps(from, to string) []Command
	change(ctx context.Context, commands []Command) error
}

// Command is one change of a table.
type Command struct {
	verb   verb
	chain  string
	rule   []string // for add and insert: the words of the rule
	listed string   // for remove: the rule with its chain, as iptables lists it
	handle uint64   // for remove: the kernel's number of the rule
}

// verb is what a command does. Its text is the option of iptables-restore.
type verb string

const (
	newChain    verb = "-N"
	add         verb = "-A"
	insert      verb = "-I"
	remove      verb = "-D"
	flush       verb = "-F"
	deleteChain verb = "-X"
)

// Read reads a table. chains are those that the caller asks about; others may be missing from the answers. IsAbsent and
// IsBusy are the errors that have a meaning of their own. environ are the variables of the plugin's call, for the
// programs: a daemon that starts again finds by them what the former one has left.
func Read(ctx context.Context, environ []string, v6 bool, name string, chains ...string) (*Table, error) {
	if isNFTables(ctx, environ, v6) {
		// An error is for the program: it knows more, or says what is wrong.
		if k, err := readKernel(place{v6, name, environ}, chains); err == nil {
			return &Table{k}, nil
		}
	}
	l, err := place{v6, name, environ}.list(ctx)
	if err != nil {
		return nil, err
	}
	return &Table{l}, nil
}

// HasChain reports whether there is a chain that is not built in.
func (t *Table) HasChain(chain string) bool { return t.hasChain(chain) }

// HasRule reports whether a chain has a rule of these words. False may also mean that the rule has another form.
func (t *Table) HasRule(chain string, words []string) bool { return t.hasRule(chain, words) }

// NewChain are the commands for a chain, which must not exist, with rules: each once, in order.
func NewChain(chain string, rules [][]string) []Command {
	commands := []Command{{verb: newChain, chain: chain}}
	for _, rule := range rules {
		if !slices.ContainsFunc(commands, func(c Command) bool { return c.verb == add && slices.Equal(c.rule, rule) }) {
			commands = append(commands, Append(chain, rule))
		}
	}
	return commands
}

// Append is the command for a rule at the end of a chain.
func Append(chain string, words []string) Command {
	return Command{verb: add, chain: chain, rule: words}
}

// Insert is the command for a rule at the head of a chain.
func Insert(chain string, words []string) Command {
	return Command{verb: insert, chain: chain, rule: words}
}

// RemoveChain are the commands that remove a chain, and the rules of others that lead to it.
func (t *Table) RemoveChain(chain string, from ...string) []Command {
	var commands []Command
	for _, f := range from {
		commands = append(commands, t.jumps(f, chain)...)
	}
	return append(commands, Command{verb: flush, chain: chain}, Command{verb: deleteChain, chain: chain})
}

// Change runs commands, all of them or none.
func (t *Table) Change(ctx context.Context, commands []Command) error {
	for _, c := range commands {
		if strings.ContainsAny(c.chain+strings.Join(c.rule, ""), "\n\r\x00") {
			return fmt.Errorf("the rule %q of chain %q has a line end, or a null character", c.rule, c.chain)
		}
	}
	return t.change(ctx, commands)
}
