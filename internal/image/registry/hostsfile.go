package registry

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/berthrun/berth/internal/hoststoml"
)

// sources are where a domain's endpoints are written, for people: containerd's parser reads them
// and does not keep that.
type sources struct {
	// file is hosts.toml, or the directory of certificate files; "" without configuration.
	file string
	// endpoints are in the order of the parser: the mirrors, then the registry itself.
	endpoints []written
	// problem is why hosts.toml is not used, "" if it is.
	problem string
}

// written is what is written of one endpoint.
type written struct {
	// line in the file, 0 if the endpoint is not written there.
	line int
	tls  []string
}

type hostTable struct {
	CA         any   `toml:"ca"`
	Client     any   `toml:"client"`
	SkipVerify *bool `toml:"skip_verify"`
}

// readSources reads what the directory of a domain has. n is how many endpoints containerd's parser
// has found there.
func readSources(dir string, n int) sources {
	if dir == "" {
		return sources{endpoints: make([]written, n)}
	}
	path := filepath.Join(dir, hoststoml.Name)
	data, err := os.ReadFile(path)
	if err != nil || len(data) == 0 {
		return certFiles(dir, n)
	}
	var file struct {
		hostTable
		Host map[string]hostTable `toml:"host"`
	}
	if err := toml.Unmarshal(data, &file); err != nil {
		s := certFiles(dir, n)
		s.problem = fmt.Sprintf("%s is not used, it cannot be read: %v", path, err)
		return s
	}
	s := sources{file: path}
	server, tables := positions(data)
	for _, at := range tables {
		s.endpoints = append(s.endpoints, written{at.line, file.Host[at.name].describe()})
	}
	s.endpoints = append(s.endpoints, written{server, file.describe()})
	if len(s.endpoints) != n {
		s = certFiles(dir, n)
		s.problem = path + " is not used: it has a value that is not valid; the daemon's log has the reason"
	}
	return s
}

// describe lists the settings of TLS. No value is a secret: keys are named by their files.
func (t hostTable) describe() []string {
	var all []string
	if t.SkipVerify != nil && *t.SkipVerify {
		all = append(all, "the certificate is not verified (skip_verify)")
	}
	if t.CA != nil {
		all = append(all, fmt.Sprintf("authorities of the host and %v", t.CA))
	}
	if t.Client != nil {
		all = append(all, fmt.Sprintf("client certificate %v", t.Client))
	}
	return all
}

// certFiles is a directory as docker has it: certificates without hosts.toml.
func certFiles(dir string, n int) sources {
	s := sources{file: dir, endpoints: make([]written, n)}
	entries, err := os.ReadDir(dir)
	if err != nil || n == 0 {
		return s
	}
	for _, entry := range entries {
		switch filepath.Ext(entry.Name()) {
		case ".crt":
			s.endpoints[n-1].tls = append(s.endpoints[n-1].tls, "authorities of the host and "+entry.Name())
		case ".cert":
			s.endpoints[n-1].tls = append(s.endpoints[n-1].tls, "client certificate "+entry.Name())
		}
	}
	return s
}

type position struct {
	name string
	line int
}

// positions returns the line of the key server, 0 if there is none, and those of the tables of
// hosts, in their order.
func positions(data []byte) (server int, tables []position) {
	var p unstable.Parser
	p.Reset(data)
	inTable := false
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind != unstable.KeyValue && e.Kind != unstable.Table {
			continue
		}
		var keys []string
		line := 0
		for it := e.Key(); it.Next(); {
			if line == 0 {
				line = p.Shape(p.Range(it.Node().Data)).Start.Line
			}
			keys = append(keys, string(it.Node().Data))
		}
		if e.Kind == unstable.KeyValue {
			if !inTable && len(keys) == 1 && keys[0] == "server" {
				server = line
			}
			continue
		}
		inTable = true
		if len(keys) >= 2 && keys[0] == "host" && (len(tables) == 0 || tables[len(tables)-1].name != keys[1]) {
			tables = append(tables, position{keys[1], line})
		}
	}
	return server, tables
}

func (s sources) at(i int) (where string, tls []string) {
	if i >= len(s.endpoints) {
		return s.file, nil
	}
	w := s.endpoints[i]
	if w.line > 0 {
		return fmt.Sprintf("%s:%d", s.file, w.line), w.tls
	}
	return s.file, w.tls
}
