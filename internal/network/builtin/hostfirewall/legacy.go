package hostfirewall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// legacyTable is the filter table of iptables-legacy, which nftables does not list. We change it
// only where it exists already.
type legacyTable struct {
	program string // iptables-legacy or ip6tables-legacy
}

// legacyTables lists the tables that exist in the calling thread's network namespace.
func legacyTables() []legacyTable {
	var tables []legacyTable
	for file, program := range map[string]string{
		"ip_tables_names": "iptables-legacy", "ip6_tables_names": "ip6tables-legacy",
	} {
		names, err := os.ReadFile("/proc/thread-self/net/" + file)
		if err != nil {
			continue
		}
		for name := range strings.FieldsSeq(string(names)) {
			if name == "filter" {
				tables = append(tables, legacyTable{program})
			}
		}
	}
	return tables
}

func (t legacyTable) name() string { return t.program + " filter FORWARD" }

// rules returns our rules, the last one first: each is inserted at the head.
func (t legacyTable) rules(bridge, tag string) [][]string {
	comment := []string{"-m", "comment", "--comment", tag, "-j", "ACCEPT"}
	return [][]string{
		append([]string{"-o", bridge, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED,DNAT"}, comment...),
		append([]string{"-i", bridge}, comment...),
	}
}

// ensure inserts our rules if FORWARD drops by policy and they are missing.
func (t legacyTable) ensure(ctx context.Context, bridge, tag string) error {
	listing, err := t.run(ctx, "-S", "FORWARD")
	if err != nil {
		return err
	}
	if !strings.Contains(listing, "-P FORWARD DROP") && !strings.Contains(listing, tag) {
		return errNotNeeded
	}
	for _, rule := range t.rules(bridge, tag) {
		if _, err := t.run(ctx, append([]string{"-C", "FORWARD"}, rule...)...); err == nil {
			continue
		}
		if _, err := t.run(ctx, append([]string{"-I", "FORWARD"}, rule...)...); err != nil {
			return err
		}
	}
	return nil
}

// remove removes our rules.
func (t legacyTable) remove(bridge, tag string) error {
	listing, err := t.run(context.Background(), "-S", "FORWARD")
	if errors.Is(err, exec.ErrNotFound) {
		return nil // then no rules were inserted either
	}
	if err != nil || !strings.Contains(listing, tag) {
		return err
	}
	var errList []error
	for _, rule := range t.rules(bridge, tag) {
		_, err := t.run(context.Background(), append([]string{"-D", "FORWARD"}, rule...)...)
		errList = append(errList, err)
	}
	return errors.Join(errList...)
}

// legacyTimeout bounds one call, which waits for the lock that all such programs take.
const legacyTimeout = 5 * time.Second

func (t legacyTable) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, legacyTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, t.program, append([]string{"-w"}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", t.program, args[0], err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
