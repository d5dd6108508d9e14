package sysns

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// LinkCounters are the counters of one network interface.
type LinkCounters struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// CountLinks reads the counters of every interface in the network namespaces that
// are pinned at paths, all of them on one thread. A namespace that is not there is
// absent from the result.
func CountLinks(paths []string) (map[string][]LinkCounters, error) {
	all := make(map[string][]LinkCounters, len(paths))
	if len(paths) == 0 {
		return all, nil
	}
	err := onOwnThread(func() error {
		for _, path := range paths {
			counters, err := countLinksIn(path)
			if errors.Is(err, errs.NotFound) {
				continue
			}
			if err != nil {
				return err
			}
			all[path] = counters
		}
		return nil
	})
	return all, err
}

// countLinksIn leaves the calling thread in the namespace.
func countLinksIn(path string) ([]LinkCounters, error) {
	ns, err := OpenNetNS(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("cannot enter the network namespace %s: %w", path, err)
	}
	data, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		return nil, fmt.Errorf("cannot read the counters of %s: %w", path, err)
	}
	return parseNetDev(string(data)), nil
}

// parseNetDev reads the table below two lines of headings:
//
//	eth0: RXBYTES PACKETS ERRS DROP FIFO FRAME COMPRESSED MULTICAST TXBYTES PACKETS ERRS DROP ...
func parseNetDev(text string) []LinkCounters {
	var all []LinkCounters
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		words := strings.Fields(rest)
		if !ok || len(words) < 12 {
			continue
		}
		n := func(i int) uint64 {
			v, err := strconv.ParseUint(words[i], 10, 64)
			if err != nil {
				return 0
			}
			return v
		}
		all = append(all, LinkCounters{
			Name:    strings.TrimSpace(name),
			RxBytes: n(0), RxPackets: n(1), RxErrors: n(2), RxDropped: n(3),
			TxBytes: n(8), TxPackets: n(9), TxErrors: n(10), TxDropped: n(11),
		})
	}
	return all
}
