// bench measures container runtimes side by side through CRI, in one run on one machine, and prints
// ratios: berth, berth over a Docker Engine, cri-dockerd and containerd. See run.sh, which prepares what it needs.
//
// It is not a test: no time makes it pass or fail.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// options of a run.
type options struct {
	bin, berth, before, work string
	criDockerd               string
	only, runtimes           string
	pods                     int
	parallel                 int
	density                  int
	execs                    int
	logMiB                   int
	pullMiB                  int
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "", "directory with containerd, its shim, runc, dockerd, the CNI plugins and pause")
	flag.StringVar(&o.berth, "berth", "", "directory with berth and berth-supervisor")
	flag.StringVar(&o.before, "before", "", "directory with other binaries of berth, measured as \"before\" with -runtimes berth,before")
	flag.StringVar(&o.criDockerd, "cri-dockerd", "", "a cri-dockerd, measured as \"cri-dockerd\"")
	flag.StringVar(&o.work, "work", "", "work directory; emptied first")
	flag.StringVar(&o.only, "only", "", "comma separated sections: latency, parallel, exec, logs, pull, density (default: all)")
	flag.StringVar(&o.runtimes, "runtimes", "berth,docker,cri-dockerd,containerd", "which to measure: docker is berth over a Docker Engine; cri-dockerd needs -cri-dockerd")
	flag.IntVar(&o.pods, "pods", 60, "pods for latencies, one after the other")
	flag.IntVar(&o.parallel, "parallel", 100, "pods for rates, 10 at a time")
	flag.IntVar(&o.density, "density", 100, "pods for memory and restart")
	flag.IntVar(&o.execs, "execs", 100, "ExecSync calls, one after the other and 10 at a time")
	flag.IntVar(&o.logMiB, "log-mib", 200, "size of the log test in MiB")
	flag.IntVar(&o.pullMiB, "pull-mib", 200, "size of the pulled image in MiB")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// newPeers are the runtimes that were asked for, in the order of the table's columns.
func newPeers(o options, r *registry) (peers []*peer, err error) {
	makers := []struct {
		name string
		make func() (*peer, error)
	}{
		{"berth", func() (*peer, error) { return newBerth(o, "berth", o.berth), nil }},
		{"before", func() (*peer, error) { return newBerth(o, "before", o.before), nil }},
		{"docker", func() (*peer, error) { return newBerthOverDocker(o) }},
		{"cri-dockerd", func() (*peer, error) { return newCRIDockerd(o, r) }},
		{"containerd", func() (*peer, error) { return newContainerd(o, r), nil }},
	}
	for _, m := range makers {
		if !slices.Contains(strings.Split(o.runtimes, ","), m.name) || (m.name == "cri-dockerd" && o.criDockerd == "") {
			continue
		}
		p, err := m.make()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		peers = append(peers, p)
	}
	if len(peers) == 0 {
		return nil, fmt.Errorf("no runtime of the name %q", o.runtimes)
	}
	return peers, nil
}

// run starts the runtimes, then runs the sections. Within a section the runtimes alternate, so
// that a drift of the machine's speed affects both.
func run(ctx context.Context, o options) (err error) {
	if err := os.RemoveAll(o.work); err != nil {
		return err
	}
	served, err := startRegistry(o)
	if err != nil {
		return fmt.Errorf("cannot serve images: %w", err)
	}
	defer served.close()

	peers, err := newPeers(o, served)
	if err != nil {
		return err
	}
	for _, p := range peers {
		if err := os.MkdirAll(filepath.Join(o.work, p.name), 0o755); err != nil {
			return err
		}
		if err := p.start(ctx); err != nil {
			return fmt.Errorf("cannot start %s: %w", p.name, err)
		}
		defer func() {
			if stopErr := p.shutdown(); err == nil {
				err = stopErr
			}
		}()
		if err := p.pull(ctx, served.image("bench:1")); err != nil {
			return fmt.Errorf("%s cannot pull the test image: %w", p.name, err)
		}
		fmt.Printf("%s: %s\n  %s\n", p.name, p.version, strings.ReplaceAll(p.config, "\n", "\n  "))
	}
	sections := []struct {
		name string
		run  func(context.Context, options, []*peer, *registry) (*table, error)
	}{
		{"latency", latency},
		{"parallel", parallelPods},
		{"exec", execs},
		{"logs", logThroughput},
		{"pull", pulls},
		{"density", density},
	}
	for _, section := range sections {
		if o.only != "" && !slices.Contains(strings.Split(o.only, ","), section.name) {
			continue
		}
		t, err := section.run(ctx, o, peers, served)
		if err != nil {
			return fmt.Errorf("%s: %w", section.name, err)
		}
		t.print(os.Stdout, peers)
	}
	return nil
}
