package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hoststoml"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// sources are where a domain's endpoints are written. containerd's parser does not keep that. If it cannot read hosts.toml, it
// has the registry of the domain asked instead, which the file may exclude. So berth reads the file first.
type sources struct {
	// file is hosts.toml, or the directory of certificate files; "" without configuration.
	file string
	// described is what hosts.toml has, nil without that file.
	described *hoststoml.Description
	// empty: hosts.toml is there, and counts as missing.
	empty bool
	// tls are the settings of the registry in a directory of certificate files.
	tls []string
	// fault is why the configuration cannot be used, nil if it can. No endpoint is asked then.
	fault error
}

// maxFile bounds hosts.toml and the files that it names, in bytes. Those of many authorities have some hundred kilobytes.
const maxFile = 16 << 20

func readFile(path string) ([]byte, error) { return sysfile.ReadFile(path, maxFile) }

// readSources reads what the directory of a domain has; "" is none.
func readSources(dir string) sources {
	if dir == "" {
		return sources{}
	}
	path := filepath.Join(dir, hoststoml.Name)
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0 {
		s := certFiles(dir)
		s.empty = err == nil
		return s
	}
	s := sources{file: path, described: &hoststoml.Description{}}
	if err != nil {
		s.fault = fmt.Errorf("%w: have it be a file that root can read, or remove %s: %w", err, dir, errs.Invalid)
		return s
	}
	s.described = hoststoml.Describe(data)
	s.described.CheckFiles(dir, readFile)
	if faults := s.described.AllFaults(); len(faults) > 0 {
		s.fault = fmt.Errorf("%s: correct the file, or remove %s: %w", at(path, faults), dir, errs.Invalid)
	}
	return s
}

// at are faults with their places.
func at(file string, faults []hoststoml.Fault) string {
	var texts []string
	for _, fault := range faults {
		texts = append(texts, fault.At(file))
	}
	return strings.Join(texts, "; ")
}

// certFiles is a directory as docker has it: certificates without hosts.toml.
func certFiles(dir string) sources {
	s := sources{file: dir}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return s // containerd's reader has the error
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch filepath.Ext(entry.Name()) {
		case ".crt", ".cert", ".key":
			info, err := os.Stat(path)
			if err == nil && !info.Mode().IsRegular() && !info.IsDir() { // containerd's reader would wait
				s.fault = fmt.Errorf("%s: is not a regular file: replace it, or remove it: %w", path, errs.Invalid)
				return s
			}
		}
		switch filepath.Ext(entry.Name()) {
		case ".crt":
			s.tls = append(s.tls, "authorities of the host and "+entry.Name())
		case ".cert":
			s.tls = append(s.tls, "client certificate "+entry.Name())
		}
	}
	return s
}

// verify compares what containerd's parser has read with what berth has: the file may have changed in between.
func (s *sources) verify(hosts []docker.RegistryHost) error {
	if s.described == nil {
		return nil
	}
	differs := len(hosts) != len(s.described.Endpoints)
	for i := 0; i < len(hosts) && !differs; i++ {
		e := &s.described.Endpoints[i]
		differs = len(hosts[i].Header) != len(e.Header) || e.Host != "" && (hosts[i].Host != e.Host || hosts[i].Capabilities&known != capabilitiesOf(e))
	}
	if differs {
		return fmt.Errorf("%s has changed while it was read: pull the image again: %w", s.file, errs.Unavailable)
	}
	return nil
}

// written are the endpoints of a hosts.toml that cannot be used, to be shown and not to be asked. Without any it is the
// registry of the domain.
func (s *sources) written(home string) []docker.RegistryHost {
	var all []docker.RegistryHost
	for i := range s.endpoints() {
		e := &s.described.Endpoints[i]
		host := docker.RegistryHost{Scheme: e.Scheme, Host: e.Host, Header: http.Header{}}
		if e.URL == "" && i == len(s.described.Endpoints)-1 {
			host.Scheme, host.Host, host.Path = "https", home, "/v2"
		}
		for _, name := range e.Header {
			host.Header[name] = nil
		}
		host.Capabilities = capabilitiesOf(e)
		all = append(all, host)
	}
	if all == nil {
		all = []docker.RegistryHost{{Scheme: "https", Host: home, Path: "/v2"}}
	}
	return all
}

// name is that of an endpoint which cannot be asked: as it is written, or registry for the registry without a URL.
func (s *sources) name(i int, registry string) string {
	switch all := s.endpoints(); {
	case i >= len(all), i == len(all)-1 && all[i].URL == "":
		return registry
	case all[i].URL == "":
		return `""`
	default:
		return all[i].Shown()
	}
}

// known are the capabilities that hosts.toml may name.
const known = docker.HostCapabilityPull | docker.HostCapabilityResolve | docker.HostCapabilityPush | docker.HostCapabilityReferrers

func capabilitiesOf(e *hoststoml.Endpoint) docker.HostCapabilities {
	if len(e.Capabilities) == 0 {
		return known
	}
	all := docker.HostCapabilities(0)
	for name, is := range map[string]docker.HostCapabilities{
		"pull": docker.HostCapabilityPull, "resolve": docker.HostCapabilityResolve,
		"push": docker.HostCapabilityPush, "referrers": docker.HostCapabilityReferrers,
	} {
		if slices.Contains(e.Capabilities, name) {
			all |= is
		}
	}
	return all
}

func (s *sources) endpoints() []hoststoml.Endpoint {
	if s.described == nil {
		return nil
	}
	return s.described.Endpoints
}

// place is where an endpoint is written.
func (s *sources) place(i int) string {
	if all := s.endpoints(); i < len(all) && all[i].Line > 0 {
		return fmt.Sprintf("%s:%d", s.file, all[i].Line)
	}
	return s.file
}

// at says where an endpoint is written, how it is reached, and what is wrong with that.
func (s *sources) at(i int) (where string, tls []string, problem string) {
	all := s.endpoints()
	if i >= len(all) {
		if s.fault != nil {
			problem = errs.Message(s.fault)
		}
		if s.empty {
			return "default of the registry's name: " + filepath.Join(s.file, hoststoml.Name) + " is empty", s.tls, problem
		}
		if s.described == nil && s.file != "" {
			return "default of the registry's name: " + s.file + " has no hosts.toml", s.tls, problem
		}
		return s.file, s.tls, problem
	}
	e := &all[i]
	problems := slices.Concat(e.Faults, e.Warnings)
	if i == len(all)-1 { // those of the whole file
		problems = slices.Concat(problems, s.described.Faults, s.described.Warnings)
	}
	if e.SkipVerify {
		tls = append(tls, "the certificate is not verified (skip_verify)")
	}
	if len(e.CA) > 0 {
		tls = append(tls, "authorities of the host and "+strings.Join(e.CA, ", "))
	}
	for _, pair := range e.Client {
		tls = append(tls, "client certificate "+pair[0])
	}
	if e.Line == 0 {
		return "default of the registry's name: " + s.file + " has no key server", tls, at(s.file, problems)
	}
	return s.place(i), tls, at(s.file, problems)
}
