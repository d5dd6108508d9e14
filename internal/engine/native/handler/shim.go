package handler

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berthrun/berth/internal/supervisor/shimoptions"
)

// ShimPath returns the path of the program of a shim, which is itself a path, or a runtime's type such as
// io.containerd.runc.v2. A program that is not in PATH is returned as its name.
func ShimPath(path string) string {
	name := shimoptions.Program(path)
	if name == "" {
		return path
	}
	if found, err := exec.LookPath(name); err == nil && filepath.IsAbs(found) {
		return found
	}
	return name
}

// ShimOptions returns the options of a shim with the path of its OCI runtime, if it runs one. A shim would look for a name in
// the PATH of the supervisor, and berth asks the program of its own PATH for features. A program that is not there stays a name.
func ShimOptions(program string, options []string) []string {
	kind := shimoptions.Of(program)
	name := kind.Binary(options)
	if name == "" || strings.Contains(name, "/") {
		return options
	}
	found, err := exec.LookPath(name)
	if err != nil || !filepath.IsAbs(found) {
		return options
	}
	return kind.WithBinary(options, found)
}

// askShim runs the program of a shim. Those before containerd 2.0 do not report features: then those of their
// OCI runtime count, if they run one.
func askShim(h *Handler) Facts {
	text, err := run(nil, h.Path, "-v")
	if err != nil {
		return Facts{Fault: fmt.Sprintf("handler %q: %s -v: %v", h.Name, h.Path, err), Broken: true}
	}
	facts := Facts{Version: shimVersion(h.Path, text)}
	features, err := shimFeatures(h)
	if binary := shimoptions.Of(h.Path).Binary(h.Options); err != nil && binary != "" {
		features, err = run(nil, binary, "features")
	}
	if err == nil {
		err = facts.read(features)
	}
	if err != nil {
		facts.Fault = fmt.Sprintf("handler %q: the features of %s are not known, so it has none: %v", h.Name, h.Path, err)
	}
	return facts
}

// shimVersion is the name of the program, and the version in its answer to -v.
func shimVersion(path string, text []byte) string {
	version := ""
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("Version:")); ok && version == "" {
			version = " " + string(bytes.TrimSpace(value))
		}
	}
	return strings.ToValidUTF8(fmt.Sprintf("%.200s", filepath.Base(path)+version), "?")
}

// shimFeatures returns the features that a shim reports, as OCI's runtime-spec has them.
func shimFeatures(h *Handler) ([]byte, error) {
	kind := shimoptions.Of(h.Path)
	value, err := kind.Encode(h.Options, shimoptions.Values{Root: h.Root})
	if err != nil {
		return nil, err
	}
	input, err := proto.Marshal(&anypb.Any{TypeUrl: kind.URL, Value: value})
	if err != nil {
		return nil, err
	}
	output, err := run(input, h.Path, "-info")
	if err != nil {
		return nil, err
	}
	info := &types.RuntimeInfo{}
	if err := proto.Unmarshal(output, info); err != nil {
		return nil, fmt.Errorf("its answer to -info is not a RuntimeInfo: %w", err)
	}
	return info.GetFeatures().GetValue(), nil
}
