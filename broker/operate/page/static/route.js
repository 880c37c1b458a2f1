// Addresses within the page: #/PLACE?parameters. A place is a list, "events", or "view/WIRE/TABLE".

/** Return `{place, parameters}` of a hash. */
export function parse(hash) {
  const [place, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { place: place === "" ? "overview" : place, parameters: new URLSearchParams(query) };
}

/** Return the hash of a place with parameters; empty ones are left out, an array gives one several times. */
export function address(place, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") query.append(name, each);
    }
  }
  const text = query.toString();
  return `#/${place === "overview" ? "" : place}${text ? `?${text}` : ""}`;
}

/** Return the hash of the present place with some parameters changed; null removes one. */
export function changed(parameters) {
  const { place, parameters: now } = parse(location.hash);
  for (const [name, value] of Object.entries(parameters)) {
    now.delete(name);
    if (value !== null && value !== "") now.append(name, value);
  }
  const text = now.toString();
  return `#/${place === "overview" ? "" : place}${text ? `?${text}` : ""}`;
}

/** Return the address of a service's details. */
export function serviceAddress(name) {
  return address("services", { open: name });
}

/** Return the address of a provider's details. */
export function providerAddress(id) {
  return address("providers", { open: id });
}
