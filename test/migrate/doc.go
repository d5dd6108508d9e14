// Package migrate types the pages of docs/migrate on machines with the former runtime.
package migrate
