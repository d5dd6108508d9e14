// Package xtables reads a table of iptables at once, and changes it at once. The programs iptables
// and iptables-restore run once each, where go-iptables runs a program for each rule that it looks
// for and each that it adds; starting them is nearly all of the time that a pod's rules take.
//
// What it cannot do in one go, such as a rule whose listing differs from how it was written, its
// callers leave to go-iptables.
package xtables

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// Table is a table of one family, as it was when it was read.
type Table struct {
	name  string
	v6    bool
	lines []string // as iptables -S lists them
}

// program is a program of a family.
func program(v6 bool, suffix string) string {
	if v6 {
		return "ip6tables" + suffix
	}
	return "iptables" + suffix
}

// Read reads a table. The error is that the host has no such table, or not the program.
func Read(ctx context.Context, v6 bool, name string) (*Table, error) {
	out, err := run(exec.CommandContext(ctx, program(v6, ""), "-w", "-t", name, "-S"))
	if err != nil {
		return nil, err
	}
	return &Table{name, v6, strings.Split(strings.TrimSuffix(out, "\n"), "\n")}, nil
}

// HasChain reports whether there is a chain that is not built in.
func (t *Table) HasChain(chain string) bool { return slices.Contains(t.lines, "-N "+chain) }

// HasRule reports whether a chain has a rule that is listed in these words. False may also mean
// that iptables lists it otherwise.
func (t *Table) HasRule(chain string, words []string) bool {
	return slices.Contains(t.lines, Line("-A", chain, words))
}

// Jumps are the rules of a chain, as they are listed, that lead to another.
func (t *Table) Jumps(from, to string) []string {
	var found []string
	for _, line := range t.lines {
		if strings.HasPrefix(line, "-A "+from+" ") && strings.HasSuffix(line, " -j "+to) {
			found = append(found, strings.TrimPrefix(line, "-A "))
		}
	}
	return found
}

// Line writes a command with a rule as iptables lists it and iptables-restore reads it.
func Line(command, chain string, words []string) string {
	line := command + " " + chain
	for _, w := range words {
		if w == "" || strings.ContainsAny(w, " \"'\\\t") {
			w = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(w) + `"`
		}
		line += " " + w
	}
	return line
}

// NewChain are the commands for a chain, which must not exist, with rules: each once, in order.
func NewChain(chain string, rules [][]string) []string {
	commands := []string{":" + chain + " - [0:0]"}
	for _, rule := range rules {
		if line := Line("-A", chain, rule); !slices.Contains(commands, line) {
			commands = append(commands, line)
		}
	}
	return commands
}

// RemoveChain are the commands that remove a chain, and the rules of others that lead to it.
func (t *Table) RemoveChain(chain string, from ...string) []string {
	var commands []string
	for _, f := range from {
		for _, jump := range t.Jumps(f, chain) {
			commands = append(commands, "-D "+jump)
		}
	}
	return append(commands, "-F "+chain, "-X "+chain)
}

// Change runs commands, all of them or none.
func (t *Table) Change(ctx context.Context, commands []string) error {
	for _, c := range commands {
		if strings.ContainsAny(c, "\n\r") {
			return fmt.Errorf("the rule %q has a line end", c)
		}
	}
	cmd := exec.CommandContext(ctx, program(t.v6, "-restore"), "-w", "--noflush")
	cmd.Stdin = strings.NewReader("*" + t.name + "\n" + strings.Join(commands, "\n") + "\nCOMMIT\n")
	_, err := run(cmd)
	return err
}

func run(cmd *exec.Cmd) (string, error) {
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}
