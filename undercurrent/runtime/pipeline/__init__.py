"""From a prompt to what each of its parts does: players, coalitions, values, estimates."""
