package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// result is what a run has measured, with each sample. The bench keeps it as JSON, and makes the page
// and the ratios from it.
type result struct {
	// When is the time of the run's begin, RFC 3339. Host is the machine in one line.
	When string `json:"when"`
	Host string `json:"host"`
	// Peers are in the order of the table's columns.
	Peers    []peerInfo `json:"peers"`
	Sections []*table   `json:"sections"`
}

type peerInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Config  string `json:"config"`
	// Beside is the peer that it is compared with.
	Beside string `json:"beside"`
}

func newResult(peers []*peer) *result {
	return &result{When: time.Now().UTC().Format(time.RFC3339), Host: host(), Peers: infos(peers)}
}

func infos(peers []*peer) (all []peerInfo) {
	for _, p := range peers {
		all = append(all, peerInfo{p.name, p.version, p.config, p.beside})
	}
	return all
}

func host() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown: " + err.Error()
	}
	cgroups := "cgroup v1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		cgroups = "cgroup v2"
	}
	return fmt.Sprintf("Linux %s, %d CPUs, %s", unix.ByteSliceToString(u.Release[:]), runtime.NumCPU(), cgroups)
}

// load is the machine's load average of the last minute.
func load() float64 {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	var one float64
	_, _ = fmt.Sscanf(string(data), "%f", &one) // 0 then
	return one
}

func (r *result) write(file string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644) //nolint:gosec // no secret
}

func readResult(file string) (*result, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &result{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// betweenEngines compares berth's two engines. It is worse after each gain of the native one.
func betweenEngines() pair { return pair{"docker", "berth"} }

// ratios are the comparisons of a result by "section: figure: pair", without betweenEngines. Numbers in
// titles of sections are part of the name, so runs of different sizes do not compare.
func (r *result) ratios() map[string]float64 {
	all := map[string]float64{}
	for _, t := range r.Sections {
		for _, row := range t.Rows {
			for _, f := range row.figures() {
				if strings.HasSuffix(f.name, "p99") { // one sample
					continue
				}
				for _, c := range t.comparisons(r.Peers) {
					if c == betweenEngines() {
						continue
					}
					if ratio, ok := f.ratio(c); ok {
						all[t.Title+": "+f.name+": "+c.String()] = float64(int(ratio*100)) / 100
					}
				}
			}
		}
	}
	return all
}

// printHead describes the run.
func (r *result) printHead(w io.Writer) {
	fmt.Fprintf(w, "%s, %s\n", r.When, r.Host)
	for _, p := range r.Peers {
		fmt.Fprintf(w, "%s: %s\n  %s\n", p.Name, p.Version, strings.ReplaceAll(strings.TrimSpace(p.Config), "\n", "\n  "))
	}
}
