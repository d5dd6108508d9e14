package crisock

import (
	"cmp"
	"io"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/provision"
	"github.com/pelletier/go-toml/v2"
)

// Configured is the path of the socket that a runtime (berth, containerd, crio) serves CRI on: the
// one of its configuration on the machine, else the default. It is "" for any other runtime. A
// configuration that cannot be read counts as absent.
func Configured(files provision.Files, runtime string) string {
	usual := map[string]string{
		"berth": "/run/berth/berth.sock", "containerd": "/run/containerd/containerd.sock", "crio": "/run/crio/crio.sock",
	}[runtime]
	for _, at := range map[string][]Place{
		"berth": {{"/etc/berth/berth.toml", []string{"listen"}}},
		"containerd": {
			{"/etc/containerd/config.toml", []string{"plugins", "io.containerd.server.v1.grpc", "address"}},
			{"/etc/containerd/config.toml", []string{"grpc", "address"}},
		},
		"crio": {
			{"/etc/crio/crio.conf.d/10-berth-node.conf", []string{"crio", "api", "listen"}},
			{"/etc/crio/crio.conf", []string{"crio", "api", "listen"}},
		},
	}[runtime] {
		socket := strings.TrimPrefix(Setting(files, at), "unix://")
		if strings.HasPrefix(socket, "/") {
			return socket
		}
	}
	return usual
}

// BerthsEngine is the engine of berth's configuration on the machine: native or docker.
func BerthsEngine(files provision.Files) string {
	return cmp.Or(Setting(files, Place{"/etc/berth/berth.toml", []string{"engine"}}), "native")
}

// Place is a value of a TOML file.
type Place struct {
	File string
	Keys []string
}

// configLimit bounds what is read of a configuration.
const configLimit = 1 << 20

// Setting reads a text or a switch ("true") of a configuration; "" where there is none.
func Setting(files provision.Files, at Place) string {
	r, err := files.Open(at.File)
	if err != nil {
		return ""
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, configLimit))
	if err != nil {
		return ""
	}
	var top map[string]any
	if toml.Unmarshal(data, &top) != nil {
		return ""
	}
	var value any = top
	for _, key := range at.Keys {
		table, _ := value.(map[string]any)
		value = table[key]
	}
	switch value := value.(type) {
	case string:
		return value
	case bool:
		return strconv.FormatBool(value)
	default:
		return ""
	}
}
