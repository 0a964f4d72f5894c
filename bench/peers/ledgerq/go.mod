module penstock/bench/ledgerq

go 1.23

require github.com/1mb-dev/ledgerq v1.4.2

// The release calls itself by a new name and is published under its old one.
replace github.com/1mb-dev/ledgerq => github.com/vnykmshr/ledgerq v1.4.2
