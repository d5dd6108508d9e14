package policy

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/image/names"
)

// requirement is one object of the file. A field that its type does not have is never set.
type requirement struct {
	kind string
	// keys are those of a signature, any of them; fulcio, pki and rekor are the other ways to trust one.
	keys   source
	fulcio *fulcio
	pki    *pki
	rekor  source
	// identity is what the signature must say that it signs.
	identity identity
}

// fulcio is who a certificate of Fulcio must be for.
type fulcio struct {
	ca            source
	issuer, email string
}

// pki is who a certificate of an authority of one's own must be for. email and host are "" for any, and not both are "".
type pki struct {
	roots, between source
	email, host    string
}

// source is where keys or certificates are.
type source struct {
	// field is the one that is set, "" for none.
	field string
	paths []string
	datas [][]byte
}

// parse reads the file.
func (p *Policy) parse(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	p.docker = map[string][]requirement{}
	err := object(dec, "", func(key, field string) (err error) {
		switch key {
		case "default":
			p.fallback, err = requirements(dec, field)
		case "transports":
			err = object(dec, field, func(transport, field string) error { return p.transport(dec, transport, field) })
		default:
			err = unknown(field)
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("has more than one JSON object")
	}
	if p.fallback == nil {
		return errors.New("field default: is missing; want a list of requirements")
	}
	return nil
}

// transport reads the scopes of one transport. Those of other transports than docker are checked, and
// never match: this node's images come from registries.
func (p *Policy) transport(dec *json.Decoder, transport, field string) error {
	return object(dec, field, func(scope, field string) error {
		if transport == "docker" {
			if why := checkScope(scope); why != "" {
				return fmt.Errorf("field %s: %s", field, why)
			}
			scope = names.Scope(scope)
			if _, twice := p.docker[scope]; twice {
				return fmt.Errorf("field %s: is there twice, once with the host in another form", field)
			}
		}
		list, err := requirements(dec, field)
		if err == nil && transport == "docker" {
			p.docker[scope] = list
		}
		return err
	})
}

// checkScope says why a scope of the transport docker would never match, "" if it may.
func checkScope(scope string) string {
	if scope == "" {
		return ""
	}
	if domain, ok := strings.CutPrefix(scope, "*."); ok {
		if domain == "" || strings.ContainsAny(domain, "*/:@") {
			return `a wildcard is *.DOMAIN, such as *.example.com, without a port or a path`
		}
		return ""
	}
	if strings.Contains(scope, "*") {
		return `matches nothing: only the form *.example.com has a wildcard`
	}
	host, path, _ := strings.Cut(scope, "/")
	if host != "localhost" && !strings.ContainsAny(host, ".:[") {
		return fmt.Sprintf("matches nothing: write the whole name, such as docker.io/library/%s", scope)
	}
	if path == "" {
		if strings.Contains(scope, "/") {
			return "matches nothing: it ends with a slash"
		}
		return ""
	}
	if _, err := reference.ParseNormalizedNamed(scope); err != nil {
		return fmt.Sprintf("matches nothing: %v", err)
	}
	return ""
}

// requirements reads a list of them, which may not be empty.
func requirements(dec *json.Decoder, field string) ([]requirement, error) {
	if err := delim(dec, field, '[', "a list of requirements"); err != nil {
		return nil, err
	}
	var list []requirement
	for dec.More() {
		r, err := readRequirement(dec, fmt.Sprintf("%s[%d]", field, len(list)))
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	if _, err := dec.Token(); err != nil {
		return nil, syntax(err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf(`field %s: is empty; want requirements, such as {"type": "reject"}`, field)
	}
	return list, nil
}

func readRequirement(dec *json.Decoder, at string) (requirement, error) {
	var r requirement
	fields := map[string]bool{}
	keyType := ""
	err := object(dec, at, func(key, field string) (err error) {
		fields[key] = true
		switch key {
		case "type":
			r.kind, err = text(dec, field)
		case "keyType":
			keyType, err = text(dec, field)
		case "keyPath", "keyPaths", "keyData", "keyDatas":
			err = r.keys.read(dec, key, field)
		case "rekorPublicKeyPath", "rekorPublicKeyPaths", "rekorPublicKeyData", "rekorPublicKeyDatas":
			err = r.rekor.read(dec, key, field)
		case "fulcio":
			r.fulcio, err = readFulcio(dec, field)
		case "pki":
			r.pki, err = readPKI(dec, field)
		case "signedIdentity":
			r.identity, err = readIdentity(dec, field)
		default:
			err = unknown(field)
		}
		return err
	})
	if err != nil {
		return r, err
	}
	if r.identity.kind == "" {
		r.identity.kind = matchRepoDigestOrExact
	}
	return r, r.check(at, fields, keyType)
}

// check checks that a requirement has the fields of its type.
func (r *requirement) check(at string, fields map[string]bool, keyType string) error {
	allowed := ""
	switch r.kind {
	case Accept, Reject:
		allowed = "type"
	case SignedBy:
		allowed = "type keyType keyPath keyPaths keyData signedIdentity"
		if keyType != "GPGKeys" {
			return fmt.Errorf("field %s.keyType: %q: want GPGKeys", at, keyType)
		}
		if r.keys.field == "" {
			return fmt.Errorf("field %s: want one of keyPath, keyPaths and keyData", at)
		}
	case SigstoreSigned:
		allowed = "type keyPath keyPaths keyData keyDatas fulcio pki rekorPublicKeyPath rekorPublicKeyPaths rekorPublicKeyData rekorPublicKeyDatas signedIdentity"
		ways := 0
		for _, has := range []bool{r.keys.field != "", r.fulcio != nil, r.pki != nil} {
			if has {
				ways++
			}
		}
		if ways != 1 {
			return fmt.Errorf("field %s: want exactly one of keyPath, keyPaths, keyData, keyDatas, fulcio and pki", at)
		}
		if r.fulcio != nil && r.rekor.field == "" {
			return fmt.Errorf("field %s.fulcio: needs rekorPublicKeyPath, or another key of the log: it has the time of the signature", at)
		}
		if r.pki != nil && r.rekor.field != "" {
			return fmt.Errorf("field %s.%s: a requirement with pki does not have it", at, r.rekor.field)
		}
	default:
		return fmt.Errorf("field %s.type: %q: want %s, %s, %s or %s", at, r.kind, Accept, Reject, SignedBy, SigstoreSigned)
	}
	for field := range fields {
		if !strings.Contains(" "+allowed+" ", " "+field+" ") {
			return fmt.Errorf("field %s.%s: a requirement of type %s does not have it", at, field, r.kind)
		}
	}
	return nil
}

func readFulcio(dec *json.Decoder, at string) (*fulcio, error) {
	f := &fulcio{}
	err := object(dec, at, func(key, field string) (err error) {
		switch key {
		case "caPath", "caData":
			err = f.ca.read(dec, key, field)
		case "oidcIssuer":
			f.issuer, err = text(dec, field)
		case "subjectEmail":
			f.email, err = text(dec, field)
		default:
			err = unknown(field)
		}
		return err
	})
	if err == nil && (f.ca.field == "" || f.issuer == "" || f.email == "") {
		err = fmt.Errorf("field %s: want one of caPath and caData, oidcIssuer and subjectEmail", at)
	}
	return f, err
}

func readPKI(dec *json.Decoder, at string) (*pki, error) {
	p := &pki{}
	err := object(dec, at, func(key, field string) (err error) {
		switch key {
		case "caRootsPath", "caRootsData":
			err = p.roots.read(dec, key, field)
		case "caIntermediatesPath", "caIntermediatesData":
			err = p.between.read(dec, key, field)
		case "subjectEmail":
			p.email, err = text(dec, field)
		case "subjectHostname":
			p.host, err = text(dec, field)
		default:
			err = unknown(field)
		}
		return err
	})
	if err == nil && (p.roots.field == "" || p.email == "" && p.host == "") {
		err = fmt.Errorf("field %s: want one of caRootsPath and caRootsData, and subjectEmail or subjectHostname", at)
	}
	return p, err
}

// read reads a field that has keys or names files of them.
func (s *source) read(dec *json.Decoder, key, field string) error {
	if s.field != "" {
		return fmt.Errorf("field %s: contradicts %s; want only one of them", field, s.field)
	}
	s.field = key
	values, err := texts(dec, field, strings.HasSuffix(key, "s"))
	if err != nil {
		return err
	}
	for _, value := range values {
		if strings.Contains(key, "Path") {
			if !filepath.IsAbs(value) {
				return fmt.Errorf("field %s: %q: want an absolute path", field, value)
			}
			s.paths = append(s.paths, value)
			continue
		}
		data, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			return fmt.Errorf("field %s: want base64: %w", field, err)
		}
		s.datas = append(s.datas, data)
	}
	return nil
}

// read returns the contents of all files and all data, and what to call each.
func (s *source) contents() (all [][]byte, names []string, err error) {
	for _, path := range s.paths {
		data, err := readFile(path)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", s.field, err)
		}
		all, names = append(all, data), append(names, path)
	}
	for range s.datas {
		names = append(names, s.field)
	}
	return append(all, s.datas...), names, nil
}
