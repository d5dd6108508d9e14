package patch

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/berthrun/berth/internal/errs"
)

// CheckTOML reports whether text can be a merge patch of a containerd configuration.
func CheckTOML(text string) error {
	_, err := parseTOML(text)
	return err
}

// CheckOps reports whether text is a list of operations of a JSON patch.
func CheckOps(text string) error {
	_, err := parseOps(text)
	return err
}

// TOML patches a containerd configuration: with merge patches (TOML, too) in their order, then with
// JSON patches. It skips a merge patch for another version than the configuration's, so that a file
// can have one for each.
func TOML(config string, merges, ops []string) (string, error) {
	doc, err := parseTOML(config)
	if err != nil {
		return "", fmt.Errorf("cannot read containerd's configuration: %w", err)
	}
	version, ok := doc["version"].(int64)
	if !ok {
		return "", fmt.Errorf("cannot patch containerd's configuration: it says no version: %w", errs.Invalid)
	}
	for i, text := range merges {
		patch, err := parseTOML(text)
		if err != nil {
			return "", fmt.Errorf("cannot read containerd patch %d: %w", i+1, err)
		}
		if wanted, ok := patch["version"]; !ok || wanted == version {
			doc = merge(doc, patch)
		}
	}
	for i, text := range ops {
		patch, err := parseOps(text)
		if err != nil {
			return "", fmt.Errorf("cannot read containerd JSON patch %d: %w", i+1, err)
		}
		if doc, err = applyOps(doc, patch); err != nil {
			return "", fmt.Errorf("cannot apply containerd JSON patch %d: %w", i+1, err)
		}
		wholeNumbers(doc)
	}
	out, err := toml.Marshal(doc)
	if err != nil {
		return "", fmt.Errorf("cannot write containerd's configuration: %w", err)
	}
	return string(out), nil
}

func parseTOML(text string) (map[string]any, error) {
	var doc map[string]any
	err := toml.Unmarshal([]byte(text), &doc)
	var at *toml.DecodeError
	switch {
	case errors.As(err, &at):
		line, _ := at.Position()
		return nil, fmt.Errorf("line %d: %s: %w", line, strings.TrimPrefix(at.Error(), "toml: "), errs.Invalid)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errs.Invalid, err)
	}
	return doc, nil
}

// wholeNumbers turns JSON's numbers into integers again: containerd refuses 5.0 for 5.
func wholeNumbers(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			value[key] = wholeNumbers(v)
		}
	case []any:
		for i, v := range value {
			value[i] = wholeNumbers(v)
		}
	case float64:
		if text, err := json.Marshal(value); err == nil && !strings.ContainsAny(string(text), ".e") {
			return int64(value)
		}
	}
	return value
}
