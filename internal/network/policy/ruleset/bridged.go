package ruleset

import (
	"bytes"
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/errs"
)

// FilterBridged makes the kernel show packets between two ports of a bridge to the rules, in the network
// namespace of this thread: without it, pods of one node reach each other whatever the rules say. The
// error is errs.Unsupported where the kernel has no br_netfilter.
func FilterBridged() error {
	for _, key := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		file := "/proc/sys/net/bridge/" + key
		now, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("the kernel does not filter packets between pods of one bridge; load its module br_netfilter: %w: %w", errs.Unsupported, err)
		}
		if bytes.Equal(bytes.TrimSpace(now), []byte("1")) {
			continue
		}
		if err := os.WriteFile(file, []byte("1"), 0); err != nil {
			return fmt.Errorf("packets between pods of one bridge are not filtered; set the sysctl net.bridge.%s to 1: %w", key, err)
		}
	}
	return nil
}
