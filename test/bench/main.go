// bench measures container runtimes side by side through CRI, in one run on one machine, and prints
// ratios: berth, berth over a Docker Engine, cri-dockerd and containerd. See run.sh, which prepares what it needs.
//
// It is not a test: no time makes it pass or fail.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// options of a run.
type options struct {
	bin, berth, before, work string
	criDockerd, crio         string
	out                      string
	only, runtimes           string
	density                  string
	pods                     int
	idlePods                 int
	parallel                 int
	execs                    int
	logMiB                   int
	pullMiB                  int
	singleMiB                int
	pullLayers               int
	pullRounds               int
	pullCases                string
	// floor is what the latency section compares with.
	floor *floor
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "", "directory with containerd, its shim, runc, dockerd, the CNI plugins and pause")
	flag.StringVar(&o.berth, "berth", "", "directory with berth and berth-supervisor")
	flag.StringVar(&o.before, "before", "", "directory with other binaries of berth, measured as \"before\" with -runtimes berth,before")
	flag.StringVar(&o.crio, "crio", "", "a CRI-O, measured as \"crio\"")
	flag.StringVar(&o.criDockerd, "cri-dockerd", "", "a cri-dockerd, measured as \"cri-dockerd\"")
	flag.StringVar(&o.work, "work", "", "work directory; emptied first, and a disk of its own for the run")
	flag.StringVar(&o.out, "out", "", "directory for result.json (all samples) and page.html, \"\" for none")
	flag.StringVar(&o.only, "only", "", "comma separated sections: latency, parallel, exec, logs, pull, network, density (default: all)")
	flag.StringVar(&o.runtimes, "runtimes", "berth,docker,cri-dockerd,crio,containerd", "which to measure: docker is berth over a Docker Engine; cri-dockerd and crio need the flags of their names")
	flag.IntVar(&o.pods, "pods", 60, "pods for latencies, one after the other")
	flag.IntVar(&o.parallel, "parallel", 100, "pods for rates, 10 at a time")
	flag.IntVar(&o.idlePods, "idle", 15, "pods and ExecSync calls, each after 500 ms without work")
	flag.StringVar(&o.density, "density", "10,100", "comma separated numbers of pods for memory, lists, exec probes and restart")
	flag.IntVar(&o.execs, "execs", 100, "ExecSync calls, one after the other and 10 at a time")
	flag.IntVar(&o.logMiB, "log-mib", 200, "size of the log test in MiB")
	flag.IntVar(&o.pullMiB, "pull-mib", 200, "size of the pulled images in MiB, unpacked")
	flag.IntVar(&o.singleMiB, "pull-single-mib", 1024, "size of the pulled image with a single layer in MiB, unpacked")
	flag.IntVar(&o.pullLayers, "pull-layers", 100, "layers of the pulled image with many layers")
	flag.IntVar(&o.pullRounds, "pull-rounds", 3, "how often each runtime pulls each image")
	flag.StringVar(&o.pullCases, "pull-cases", "six,single,many,shared,zstd", "comma separated kinds of images to pull")
	short := flag.Bool("short", false, "pull smaller images: -pull-mib 60, -pull-single-mib 200, -pull-layers 40")
	serve := flag.String("serve-registry", "", "serve the images of this directory, and measure nothing; the bench starts itself so")
	inflateWith := flag.String("inflate", "", "inflate the file of the argument with \"berth\", \"go\" or \"klauspost\", and measure nothing; the bench starts itself so")
	checkFile := flag.String("check", "", "compare the result in -out with this file of ratios, and measure nothing")
	ratiosFile := flag.String("write-ratios", "", "write the ratios of the result in -out to this file, and measure nothing")
	flag.Parse()
	if *short {
		o.pullMiB, o.singleMiB, o.pullLayers = 60, 200, 40
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *serve != "":
		err = serveRegistry(*serve)
	case *inflateWith != "":
		err = inflateFile(*inflateWith, flag.Arg(0))
	case *checkFile != "":
		err = check(os.Stdout, o.resultFile(), *checkFile)
	case *ratiosFile != "":
		err = writeRatios(o.resultFile(), *ratiosFile)
	default:
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (o options) resultFile() string { return filepath.Join(o.out, "result.json") }

// newPeers are the runtimes that were asked for, in the order of the table's columns.
func newPeers(o options, r *registry) (peers []*peer, err error) {
	makers := []struct {
		name string
		make func() (*peer, error)
	}{
		{"berth", func() (*peer, error) { return newBerth(o, "berth", o.berth) }},
		{"before", func() (*peer, error) { return newBerth(o, "before", o.before) }},
		{"docker", func() (*peer, error) { return newBerthOverDocker(o) }},
		{"cri-dockerd", func() (*peer, error) { return newCRIDockerd(o, r) }},
		{"crio", func() (*peer, error) { return newCRIO(o, r), nil }},
		{"containerd", func() (*peer, error) { return newContainerd(o, "containerd", r), nil }},
	}
	for _, m := range makers {
		if !slices.Contains(strings.Split(o.runtimes, ","), m.name) || (m.name == "cri-dockerd" && o.criDockerd == "") || (m.name == "crio" && o.crio == "") {
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
	if err := mountDisk(ctx, o.work); err != nil {
		return err
	}
	served, err := startRegistry(ctx, o)
	if err != nil {
		return fmt.Errorf("cannot serve images: %w", err)
	}
	defer func() { err = errors.Join(err, served.close()) }()

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
	}
	if o.floor, err = newFloor(filepath.Join(o.work, floorName)); err != nil {
		return fmt.Errorf("cannot prepare the floor: %w", err)
	}
	defer func() { err = errors.Join(err, o.floor.close()) }()
	return measure(ctx, o, peers, served)
}

// sectionFunc measures one section.
type sectionFunc func(context.Context, options, []*peer, *registry) (*table, error)

type section struct {
	name string
	run  sectionFunc
}

func sections(o options) ([]section, error) {
	all := []section{
		{"latency", latency},
		{"parallel", parallelPods},
		{"exec", execs},
		{"logs", logThroughput},
		{"pull", pulls},
		{"network", networks},
	}
	for count := range strings.SplitSeq(o.density, ",") {
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-density: %q is not a number of pods", count)
		}
		all = append(all, section{"density", density(n)})
	}
	return slices.DeleteFunc(all, func(s section) bool {
		return o.only != "" && !slices.Contains(strings.Split(o.only, ","), s.name)
	}), nil
}

// measure runs the sections, and keeps what they found after each of them.
func measure(ctx context.Context, o options, peers []*peer, served *registry) error {
	all, err := sections(o)
	if err != nil {
		return err
	}
	found := newResult(peers)
	found.printHead(os.Stdout)
	for _, s := range all {
		before := load()
		t, err := s.run(ctx, o, peers, served)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		t.Load = before
		t.print(os.Stdout, found.Peers)
		found.Sections = append(found.Sections, t)
		if o.out == "" {
			continue
		}
		if err := os.MkdirAll(o.out, 0o755); err != nil {
			return err
		}
		if err := errors.Join(found.write(o.resultFile()), page(found, filepath.Join(o.out, "page.html"))); err != nil {
			return err
		}
	}
	return nil
}
