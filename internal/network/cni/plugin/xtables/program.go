package xtables

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/coreos/go-iptables/iptables"
)

// lockWait is for how many seconds one program waits for the lock of iptables. A lock that another program holds
// for longer fails the call, which is repeated; without a limit the call would never end.
const lockWait = 20

// Open returns go-iptables for a family, whose programs wait for the lock no longer than those of this package.
func Open(v6 bool) (*iptables.IPTables, error) {
	protocol := iptables.ProtocolIPv4
	if v6 {
		protocol = iptables.ProtocolIPv6
	}
	return iptables.New(iptables.IPFamily(protocol), iptables.Timeout(lockWait))
}

// Usable reports whether the host has iptables for IPv4. A table that is in use for now is there: else a pod would get
// rules of another kind for as long as some program holds the lock.
func Usable(ctx context.Context, environ []string) bool {
	const filter, input = "filter", "INPUT"
	if isNFTables(ctx, environ, false) {
		if k, err := readKernel(place{false, filter, environ}, []string{input}); err == nil && k.lists(input) {
			return true
		}
	}
	ipt, err := Open(false)
	if err != nil {
		return false
	}
	_, err = ipt.ChainExists(filter, input)
	return err == nil || IsBusy(err)
}

// place is where a table is: its family and its name. environ is for programs.
type place struct {
	v6      bool
	table   string
	environ []string
}

// name is the name of a program of a family.
func (p place) name(suffix string) string {
	if p.v6 {
		return "ip6tables" + suffix
	}
	return "iptables" + suffix
}

// listing is a table that a program has listed.
type listing struct {
	place
	lines []string // as iptables -S lists them
}

var _ source = (*listing)(nil)

func (p place) list(ctx context.Context) (*listing, error) {
	out, err := p.run(exec.CommandContext(ctx, p.name(""), "-w", strconv.Itoa(lockWait), "-t", p.table, "-S"))
	if err != nil && isAbsent(p.v6, p.table, err) {
		return nil, absentError{err}
	}
	if err != nil {
		return nil, err
	}
	return &listing{p, strings.Split(strings.TrimSuffix(out, "\n"), "\n")}, nil
}

func (l *listing) hasChain(chain string) bool { return slices.Contains(l.lines, "-N "+chain) }

func (l *listing) hasRule(chain string, words []string) bool {
	return slices.Contains(l.lines, line(Append(chain, words)))
}

func (l *listing) jumps(from, to string) []Command {
	var found []Command
	for _, text := range l.lines {
		if strings.HasPrefix(text, "-A "+from+" ") && strings.HasSuffix(text, " -j "+to) {
			found = append(found, Command{verb: remove, chain: from, listed: strings.TrimPrefix(text, "-A ")})
		}
	}
	return found
}

// line writes a command as iptables-restore reads it, and a rule as iptables lists it.
func line(c Command) string {
	switch c.verb {
	case newChain:
		return "-N " + c.chain // ":CHAIN" would flush a chain that another pod has made meanwhile
	case remove:
		return "-D " + c.listed
	}
	text := string(c.verb) + " " + c.chain
	for _, w := range c.rule {
		if w == "" || strings.ContainsAny(w, " \"'\\\t") {
			w = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(w) + `"`
		}
		text += " " + w
	}
	return text
}

func (p place) change(ctx context.Context, commands []Command) error {
	cmd := exec.CommandContext(ctx, p.name("-restore"), "-w", strconv.Itoa(lockWait), "--noflush")
	text := "*" + p.table + "\n"
	for _, c := range commands {
		text += line(c) + "\n"
	}
	cmd.Stdin = strings.NewReader(text + "COMMIT\n")
	_, err := p.run(cmd)
	return err
}

func (p place) run(cmd *exec.Cmd) (string, error) {
	cmd.Env = p.environ
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	// It must not go on waiting for the lock of iptables when the daemon is gone, and add rules after DEL. The caller's
	// thread is its own until the program ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}
