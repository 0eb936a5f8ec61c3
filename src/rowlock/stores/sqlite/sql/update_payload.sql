SELECT payload FROM _jobs WHERE n = ?
