package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// object reads an object and calls read for the value of each key. A repeated key is an error. Fields
// are named by their path from the top.
func object(dec *json.Decoder, at string, read func(key, field string) error) error {
	if err := delim(dec, at, '{', "an object"); err != nil {
		return err
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return syntax(err)
		}
		key, _ := token.(string)
		field := key
		if at != "" {
			field = at + "." + key
		}
		if seen[key] {
			return fmt.Errorf("field %s: is there twice", field)
		}
		seen[key] = true
		if err := read(key, field); err != nil {
			return err
		}
	}
	_, err := dec.Token()
	return syntax(err)
}

func delim(dec *json.Decoder, field string, want json.Delim, what string) error {
	token, err := dec.Token()
	if err != nil {
		return syntax(err)
	}
	if got, ok := token.(json.Delim); !ok || got != want {
		if field == "" {
			return fmt.Errorf("want %s", what)
		}
		return fmt.Errorf("field %s: want %s", field, what)
	}
	return nil
}

// text reads a string that is not empty.
func text(dec *json.Decoder, field string) (string, error) {
	token, err := dec.Token()
	if err != nil {
		return "", syntax(err)
	}
	value, ok := token.(string)
	if !ok || value == "" {
		return "", fmt.Errorf("field %s: want a string that is not empty", field)
	}
	return value, nil
}

// texts reads a string, or a list of at least one.
func texts(dec *json.Decoder, field string, list bool) ([]string, error) {
	if !list {
		value, err := text(dec, field)
		return []string{value}, err
	}
	if err := delim(dec, field, '[', "a list of strings"); err != nil {
		return nil, err
	}
	var values []string
	for dec.More() {
		value, err := text(dec, fmt.Sprintf("%s[%d]", field, len(values)))
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	if _, err := dec.Token(); err != nil {
		return nil, syntax(err)
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("field %s: is empty", field)
	}
	return values, nil
}

func unknown(field string) error { return fmt.Errorf("field %s: is unknown", field) }

// syntax is the error of text that is not JSON.
func syntax(err error) error {
	var at *json.SyntaxError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &at):
		return fmt.Errorf("is not JSON: at byte %d: %w", at.Offset, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("is not JSON: it ends too early")
	}
	return fmt.Errorf("is not JSON: %w", err)
}
