package taskapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Bootstrap is what the program of a shim gets on its stdin for `start`.
type Bootstrap struct {
	ID, Namespace string
	// Events is the path of the socket of ServeEvents.
	Events string
	// SocketDir is where the shim makes its socket, "" for its own choice.
	SocketDir string
	// Options is an Any, empty for none.
	Options Message
}

// Encode returns the BootstrapParams of containerd 2.3 and later. Older shims read the options alone.
func (b *Bootstrap) Encode() []byte {
	m := Message{}.Text(1, b.ID).Text(2, b.Namespace).Text(5, b.Events).Text(6, b.Events)
	if len(b.Options) > 0 {
		m = m.Embed(8, Message{}.Embed(1, b.Options))
	}
	return m.Text(9, b.SocketDir)
}

// Address is where a shim serves the task API.
type Address struct {
	// Socket is the path of a unix socket.
	Socket string
	// Version is that of the task API.
	Version int
}

// maxVersion is the newest version of the task API that this package has.
const maxVersion = 3

// ParseStart reads what a shim prints for `start`: a BootstrapResult, the same in JSON, or an address alone,
// which is that of version 2. Kind Unsupported when berth cannot reach such an address.
func ParseStart(output []byte) (*Address, error) {
	text := bytes.TrimSpace(output)
	if len(text) == 0 {
		return nil, errors.New("it has printed no address")
	}
	var found struct {
		Version  int    `json:"version"`
		Address  string `json:"address"`
		Protocol string `json:"protocol"`
	}
	switch {
	case text[0] == '{':
		if err := json.Unmarshal(text, &found); err != nil {
			return nil, fmt.Errorf("it has printed %.80q, which is not an address", text)
		}
	case bytes.Contains(text[:min(len(text), 16)], []byte("://")) && text[0] > ' ':
		found.Version, found.Address = 2, string(text)
	default:
		err := Message(output).Fields(func(f Field) error {
			switch f.ID {
			case 1:
				found.Version = number(f)
			case 2:
				found.Address = f.Text()
			case 3:
				found.Protocol = f.Text()
			}
			return nil
		})
		if err != nil || found.Address == "" {
			return nil, fmt.Errorf("it has printed %.80q, which is not an address", text)
		}
	}
	if found.Version < 2 || found.Version > maxVersion {
		return nil, fmt.Errorf("it has version %d of the task API, and berth has 2 to %d: %w", found.Version, maxVersion, errs.Unsupported)
	}
	if found.Protocol != "" && found.Protocol != "ttrpc" {
		return nil, fmt.Errorf("it has the protocol %.20q, and berth has ttrpc: %w", found.Protocol, errs.Unsupported)
	}
	socket, ok := strings.CutPrefix(found.Address, "unix://")
	if !ok || !strings.HasPrefix(socket, "/") {
		return nil, fmt.Errorf("it has the address %.80q, and berth has those of unix sockets (unix:///path): %w", found.Address, errs.Unsupported)
	}
	return &Address{Socket: socket, Version: found.Version}, nil
}
